"""A server with users, for the tests."""

SASL_USERS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_rdzv="secret"
    user_stranger="hi";
};
"""
