"""Owns the options of all commands, a file for each folder of commands.

A function of a command's name declares its options, and its docstring is the command's help. These
files import nothing but argparse, so that help and usage errors appear at once.
"""
