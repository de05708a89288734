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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress"
)

const (
	tun    = "/dev/net/tun"
	device = "eth0" // in every namespace
	// mtu is as large as a tap allows. No packet of a link ever reaches a
	// network, so that each may carry as much as there is.
	mtu = 65520
	// queue is how many frames may wait for us in the kernel.
	queue = 128

	bits4, bits6 = 30, 126 // of the networks on a link

	letGo = 2 * time.Second // who closed a tap has let go of it by then
)

// Hardware addresses, the same on every link: each has just two ends.
var (
	insideMAC  = net.HardwareAddr{0x02, 0xe1, 0, 0, 0, 2}
	gatewayMAC = net.HardwareAddr{0x02, 0xe1, 0, 0, 0, 1}
)

// A wire is a namespace with a tap in it.
type wire struct {
	ns *os.File

	mu     sync.Mutex
	closed bool
	end    *endpoint // open; nil if it is not
}

// within runs f on a thread of its own in the namespace ns, or in a new one if
// that is nil. The thread is of no use to anybody afterwards, and ends.
func within(ns *os.File, f func() error) error {
	done := make(chan error, 1)
	go apart(func() {
		done <- func() error {
			if ns == nil {
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					return fmt.Errorf("make a network namespace: %w", err)
				}
			} else if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter a network namespace: %w", err)
			}
			return f()
		}()
	})
	return <-done
}

// apart runs f on a thread that ends with the goroutine that called apart. It
// must be the last thing that the goroutine does. The main thread never ends,
// and would hold what f enters for ever: f is not run there.
func apart(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		f() // and the thread stays locked
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		apart(f) // on another thread: this one is taken
	}()
	<-done
	runtime.UnlockOSThread()
}

// newWire makes a namespace with a tap. Nothing is left of it after an error.
func newWire() (*wire, error) {
	w := &wire{}
	err := within(nil, func() (err error) {
		defer func() {
			if err != nil && w.ns != nil {
				w.ns.Close()
			}
		}()
		if w.ns, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())); err != nil {
			return err
		}
		fd, err := attach(true)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return furnish()
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// attach opens our end of the tap in the thread's namespace. A lasting one is
// there without us.
func attach(lasting bool) (fd int, err error) {
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

// furnish gives the devices of the thread's namespace what runsc copies from
// there: addresses, routes and neighbours.
func furnish() error {
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
		{"address", func() error { return h.LinkSetHardwareAddr(tap, insideMAC) }},
		{"MTU", func() error { return h.LinkSetMTU(tap, mtu) }},
		{"queue", func() error { return h.LinkSetTxQLen(tap, queue) }},
		{"addresses made up by the kernel", func() error { return noMadeUp(h, tap) }},
		{"state", func() error { return h.LinkSetUp(tap) }},
		{"IPv4", func() error { return join(h, tap, egress.Inside4, egress.Gateway4, bits4) }},
		{"IPv6", func() error {
			if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
				return nil // the host has none
			}
			return join(h, tap, egress.Inside6, egress.Gateway6, bits6)
		}},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("set up the tap: %s: %w", s.what, err)
		}
	}
	return nil
}

// noMadeUp keeps the kernel from giving the tap a link-local address.
func noMadeUp(h *netlink.Handle, tap netlink.Link) error {
	err := h.LinkSetIP6AddrGenMode(tap, 1) // none
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // there is no IPv6
	}
	return err
}

// join gives the tap an address and a gateway whose hardware address is known.
func join(h *netlink.Handle, tap netlink.Link, own, gateway netip.Addr, bits int) error {
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

// foundWire returns the wire at path, if there is one.
func foundWire(path string) (*wire, error) {
	ns, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	err = within(ns, func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		// Never that of somebody else, should the path lead astray.
		if dev.HardwareAddr.String() != insideMAC.String() {
			return fmt.Errorf("%s is no tap of ours", device)
		}
		return nil
	})
	if err != nil {
		ns.Close()
		return nil, err
	}
	return &wire{ns: ns}, nil
}

// open opens our end of the tap.
func (w *wire) open() (*endpoint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return nil, engi.Errorf(engi.Unavailable, "it is closed")
	case w.end != nil && !w.end.closed():
		return nil, engi.Errorf(engi.Conflict, "it is open")
	}
	if w.end != nil {
		w.end.Wait()
	}
	var fd int
	err := within(w.ns, func() (err error) {
		// The one before may be about to let go, in this process or in one
		// that was just killed.
		for until := time.Now().Add(letGo); ; time.Sleep(time.Millisecond) {
			fd, err = attach(false)
			if !errors.Is(err, unix.EBUSY) || time.Now().After(until) {
				return err
			}
		}
	})
	if err != nil {
		return nil, refuse(err)
	}
	if w.end, err = newEndpoint(fd); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	return w.end, nil
}

// close lets go of the namespace.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.closed = true
	if w.end != nil {
		w.end.Close()
	}
	w.ns.Close()
}

// refuse explains why there can be no link.
func refuse(err error) error {
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
