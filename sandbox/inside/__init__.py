"""What runs inside the sandbox: imports nothing of the rest of the package, and nothing here is a secret."""
