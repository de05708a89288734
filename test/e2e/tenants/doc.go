// Package tenants tests that one owner of a node notices nothing of another one
// who attacks it with everything at once: stalled connections, readers that do not
// read, requests that cost much, a full queue and hostile programs.
package tenants
