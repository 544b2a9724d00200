# Made by sync.py from souk/_async/__init__.py; not written by hand.
"""The client for plain calls. `souk._sync` is made from it by sync.py."""
