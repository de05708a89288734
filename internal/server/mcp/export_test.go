package mcp

// Known reports whether it is written down what a tool does.
func Known(tool string) bool { _, ok := effects[tool]; return ok }
