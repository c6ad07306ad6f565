"""Databases of records: LMDB and LevelDB, and the coding of a record."""
