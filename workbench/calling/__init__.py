"""How the client makes an SPMD call: the request, its way to the head and back, what the answer is."""
