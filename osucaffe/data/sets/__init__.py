"""The data sets that databases are made from, and statistics of them."""
