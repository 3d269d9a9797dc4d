"""The calls of Windows that the source and the store are made of: what they are (`api`), and how they are made."""
