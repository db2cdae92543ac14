"""A catalogue pair as a launch command for an engine that scales past one machine."""
