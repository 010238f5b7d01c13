"""Operators whose arguments captured graphs can be given anew."""
