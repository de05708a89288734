// Package tenants tests that one owner of a node notices nothing of another owner
// who attacks the node in all ways at once: stalled connections, readers that do not
// read, expensive requests, a full queue and hostile programs.
package tenants
