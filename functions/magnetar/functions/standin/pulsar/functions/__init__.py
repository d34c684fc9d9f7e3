"""The official SDK's modules, by their names there."""
