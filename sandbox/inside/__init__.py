"""The code that runs inside the sandbox: it imports nothing of the rest of the package, and nothing here is a secret."""
