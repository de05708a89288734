package link

// Apart is apart, for tests that enter namespaces.
func Apart(f func()) { onOwnThread(f) }
