"""nbrl: reinforcement learning of notebook agents. Each link beside this file is one of the repository's top-level folders."""
