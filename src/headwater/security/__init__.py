"""Security of connections, used by the broker, the client and the HTTP server.

principal   the identity of a client

TLS, SASL, SCRAM credentials and ACLs will be added here.
"""
