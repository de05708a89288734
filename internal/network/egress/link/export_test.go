package link

// Apart exports onOwnThread for tests that enter namespaces.
func Apart(f func()) { onOwnThread(f) }
