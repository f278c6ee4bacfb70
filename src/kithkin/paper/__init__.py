"""The paper's tables and figures, regenerated: recipes say which runs they need, cells keep what was run."""
