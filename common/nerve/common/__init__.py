"""Mechanisms without a domain word: ledgers' SQL, brokers, outbox, inbox, leases, objects."""
