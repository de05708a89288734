package volume

// SetListed bounds listings to n entries, before the keeper is used.
func (k *Manager) SetListed(n int) { k.listed = n }
