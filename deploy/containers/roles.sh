#!/bin/bash
# Run once by the PostgreSQL image, on an empty server. Two databases and three users: the owner, who
# migrates, and one for each side, who may read and write rows of its own database and connect to no other.
psql -v ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'SQL'
\set owner `cat /run/secrets/owner`
\set brain `cat /run/secrets/brain`
\set hands `cat /run/secrets/hands`
create role nerve_owner login password :'owner';
create role nerve_brain login password :'brain';
create role nerve_hands login password :'hands';
create database brain owner nerve_owner;
create database hands owner nerve_owner;
revoke connect, temporary on database brain, hands, postgres, template1 from public;
grant connect on database brain to nerve_brain;
grant connect on database hands to nerve_hands;

\connect brain
revoke create on schema public from public;
grant usage, create on schema public to nerve_owner;
alter default privileges for role nerve_owner grant select, insert, update, delete on tables to nerve_brain;
alter default privileges for role nerve_owner grant usage, select on sequences to nerve_brain;

\connect hands
revoke create on schema public from public;
alter default privileges for role nerve_owner grant usage on schemas to nerve_hands;
alter default privileges for role nerve_owner grant select, insert, update, delete on tables to nerve_hands;
alter default privileges for role nerve_owner grant usage, select on sequences to nerve_hands;
SQL
