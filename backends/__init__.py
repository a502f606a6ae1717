"""Where logs are stored: one narrow protocol (``base``) and its implementations."""
