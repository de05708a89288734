package approval

// Waiting returns how many requests wait.
func (m *Manager) Waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting[nil]
}
