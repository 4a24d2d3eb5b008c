"""Everything that touches the world: API server, disk, git remotes, clock, signals and terminal."""
