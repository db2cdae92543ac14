"""Everything that proposes tokens, behind one small protocol (`base`)."""
