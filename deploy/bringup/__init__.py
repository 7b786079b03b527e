"""What `deploy/up.py` is made of: the shape that compose.yaml describes, its processes, their traffic."""
