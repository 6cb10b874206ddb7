"""Transactions across partitions.

transaction  the states of a transaction; pure
store        transactions and their pending offsets on disk
coordinator  run transactions: decide, write markers, time out
"""
