"""The Hands ledger: tables, one transaction function per law, and the reads that answer questions."""

from nerve.hands.ledger.schema import HANDS_SCHEMA

__all__ = ["HANDS_SCHEMA"]
