//go:build !unix

package guest

import "net"

// alive cannot look here; a dead connection shows when it is used.
func alive(net.Conn) bool { return true }
