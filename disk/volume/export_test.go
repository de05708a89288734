package volume

// SetListed bounds listings to n entries. Call it before the manager is used.
func (m *Manager) SetListed(n int) { m.maxListed = n }
