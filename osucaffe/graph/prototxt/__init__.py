"""Passes from NetParameter to NetParameter."""
