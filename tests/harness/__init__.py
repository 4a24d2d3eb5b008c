"""What the end-to-end tests run on: a small client, a simulated API server and a real control plane."""
