"""Owns passes from NetParameter to NetParameter."""
