package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
)

const (
	tun    = "/dev/net/tun"
	device = "eth0" // name of the tap in every namespace
	// mtu is the largest MTU that a tap allows. Packets never reach a real network.
	mtu = 65520
	// queue is the number of frames that the kernel queues for this process.
	queue = 128

	bits4, bits6 = 30, 126 // prefix lengths of the networks on a link

	busyTimeout = 2 * time.Second // time in which the kernel releases a closed tap
)

// Hardware addresses, equal on every link, because a link has only two ends.
var (
	sandboxMAC = net.HardwareAddr{0x02, 0xe1, 0, 0, 0, 2}
	gatewayMAC = net.HardwareAddr{0x02, 0xe1, 0, 0, 0, 1}
)

// A namespace is a network namespace with a tap in it.
type namespace struct {
	ns *os.File

	mu       sync.Mutex
	closed   bool
	endpoint *endpoint // endpoint opened last; nil if none was opened
}

// inNamespace runs f on a thread of its own in the namespace ns, or in a new one
// if ns is nil. The thread ends afterwards.
func inNamespace(ns *os.File, f func() error) error {
	done := make(chan error, 1)
	go onOwnThread(func() {
		done <- func() error {
			if ns == nil {
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					return fmt.Errorf("create a network namespace: %w", err)
				}
			} else if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter a network namespace: %w", err)
			}
			return f()
		}()
	})
	return <-done
}

// onOwnThread runs f on a thread that ends with the calling goroutine, which must
// do nothing else afterwards. It avoids the main thread, which would never end
// and keep the namespace.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		f() // the thread stays locked, so it ends with the goroutine
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(f) // runs f on another thread, because this one is the main thread
	}()
	<-done
	runtime.UnlockOSThread()
}

// newNamespace creates a namespace with a tap. An error leaves nothing
// behind.
func newNamespace() (*namespace, error) {
	n := &namespace{}
	err := inNamespace(nil, func() (err error) {
		defer func() {
			if err != nil && n.ns != nil {
				n.ns.Close()
			}
		}()
		if n.ns, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())); err != nil {
			return err
		}
		fd, err := openTap(true)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return configure()
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// openTap opens the host's end of the tap in the thread's namespace. If lasting is set, the
// tap continues to exist after the host's end is closed.
func openTap(lasting bool) (fd int, err error) {
	if fd, err = unix.Open(tun, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return -1, fmt.Errorf("open %s: %w", tun, err)
	}
	req, err := unix.NewIfreq(device)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err == nil && lasting {
		err = unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("open a tap: %w", err)
	}
	return fd, nil
}

// configure sets addresses, routes and neighbours of the devices in the thread's
// namespace, from which runsc copies them.
func configure() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring up the loopback: %w", err)
	}
	tap, err := h.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find the tap: %w", err)
	}
	steps := []struct {
		what string
		do   func() error
	}{
		{"address", func() error { return h.LinkSetHardwareAddr(tap, sandboxMAC) }},
		{"MTU", func() error { return h.LinkSetMTU(tap, mtu) }},
		{"queue", func() error { return h.LinkSetTxQLen(tap, queue) }},
		{"link-local address", func() error { return disableLinkLocal(h, tap) }},
		{"state", func() error { return h.LinkSetUp(tap) }},
		{"IPv4", func() error { return addAddress(h, tap, egress.Sandbox4, egress.Gateway4, bits4) }},
		{"IPv6", func() error {
			if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
				return nil // the host has no IPv6
			}
			return addAddress(h, tap, egress.Sandbox6, egress.Gateway6, bits6)
		}},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("set up the tap: %s: %w", s.what, err)
		}
	}
	return nil
}

// disableLinkLocal prevents the kernel from giving the tap a link-local address.
func disableLinkLocal(h *netlink.Handle, tap netlink.Link) error {
	err := h.LinkSetIP6AddrGenMode(tap, 1) // none
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // the host has no IPv6
	}
	return err
}

// addAddress gives the tap an address and a gateway with a fixed hardware address.
func addAddress(h *netlink.Handle, tap netlink.Link, own, gateway netip.Addr, bits int) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(bits, own.BitLen())}}
	family := netlink.FAMILY_V4
	if own.Is6() {
		addr.Flags = unix.IFA_F_NODAD
		family = netlink.FAMILY_V6
	}
	if err := h.AddrAdd(tap, addr); err != nil {
		return err
	}
	index := tap.Attrs().Index
	err := h.NeighAdd(&netlink.Neigh{
		LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT, IP: gateway.AsSlice(), HardwareAddr: gatewayMAC,
	})
	if err != nil {
		return fmt.Errorf("neighbour: %w", err)
	}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("route: %w", err)
	}
	return nil
}

// openNamespace opens an existing namespace by its path.
func openNamespace(path string) (*namespace, error) {
	ns, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	err = inNamespace(ns, func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		// Check the tap, since the path could lead to a foreign namespace.
		if dev.HardwareAddr.String() != sandboxMAC.String() {
			return fmt.Errorf("%s is not one of our taps", device)
		}
		return nil
	})
	if err != nil {
		ns.Close()
		return nil, err
	}
	return &namespace{ns: ns}, nil
}

// open opens the host's end of the tap.
func (n *namespace) open() (*endpoint, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return nil, engi.Errorf(engi.Unavailable, "it is closed")
	case n.endpoint != nil && !n.endpoint.closed():
		return nil, engi.Errorf(engi.Conflict, "it is open")
	}
	if n.endpoint != nil {
		n.endpoint.Wait()
	}
	var fd int
	err := inNamespace(n.ns, func() (err error) {
		// The previous owner, in this process or in a process that was just killed, may
		// not have released the tap yet.
		for until := time.Now().Add(busyTimeout); ; time.Sleep(time.Millisecond) {
			fd, err = openTap(false)
			if !errors.Is(err, unix.EBUSY) || time.Now().After(until) {
				return err
			}
		}
	})
	if err != nil {
		return nil, explain(err)
	}
	if n.endpoint, err = newEndpoint(fd); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	return n.endpoint, nil
}

// close releases the namespace.
func (n *namespace) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	n.closed = true
	if n.endpoint != nil {
		n.endpoint.Close()
	}
	n.ns.Close()
}

// explain classifies an error of creating a link.
func explain(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO):
		return engi.Errorf(engi.Unsupported, "%v", err).WithRemedy("load the tun module: modprobe tun; in a container, give it the device /dev/net/tun")
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return engi.Errorf(engi.Unsupported, "%v", err).WithRemedy("run engi as root, or let its user open /dev/net/tun (chmod 0666 /dev/net/tun) and make network namespaces")
	case errors.Is(err, unix.ENOSPC):
		return engi.Errorf(engi.Exhausted, "%v", err).WithRemedy("raise user.max_net_namespaces")
	case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE):
		return engi.Errorf(engi.Exhausted, "%v", err).WithRemedy("raise the limit of open files")
	}
	return engi.Errorf(engi.Internal, "%v", err)
}
