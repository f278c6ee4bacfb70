"""A federation over the network, on Flower: its file, what travels, the sites' side and the server's, and the commands.

Nothing here is imported by a run on one machine; Flower comes with the extra `kithkin[deploy]`.
"""
