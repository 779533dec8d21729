"""Conversations, responses and journals: the contract, its Redis, and a private server for it."""
