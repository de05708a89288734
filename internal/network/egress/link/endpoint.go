package link

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// An endpoint is the host's end of a tap. To its stack it is a link without hardware
// addresses: it adds the fixed addresses itself and drops frames for other destinations.
// It uses the runtime's poller: an idle link costs a goroutine, but no thread.
type endpoint struct {
	file *os.File
	raw  syscall.RawConn
	done chan struct{} // closed by Close

	readers sync.WaitGroup
	mtu     atomic.Uint32

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher // nil means that frames are not read
	onClose    func()
}

var _ stack.LinkEndpoint = (*endpoint)(nil)

// newEndpoint takes ownership of fd.
func newEndpoint(fd int) (*endpoint, error) {
	e := &endpoint{file: os.NewFile(uintptr(fd), tun), done: make(chan struct{})}
	e.mtu.Store(mtu)
	var err error
	if e.raw, err = e.file.SyscallConn(); err != nil {
		e.file.Close()
		return nil, err
	}
	return e, nil
}

func (e *endpoint) closed() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// MTU implements stack.LinkEndpoint.
func (e *endpoint) MTU() uint32 { return e.mtu.Load() }

// SetMTU implements stack.LinkEndpoint.
func (e *endpoint) SetMTU(n uint32) { e.mtu.Store(min(n, mtu)) }

// MaxHeaderLength implements stack.LinkEndpoint.
func (e *endpoint) MaxHeaderLength() uint16 { return 0 }

// LinkAddress implements stack.LinkEndpoint.
func (e *endpoint) LinkAddress() tcpip.LinkAddress { return "" }

// SetLinkAddress implements stack.LinkEndpoint.
func (e *endpoint) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities implements stack.LinkEndpoint. Frames do not change on their way
// through one kernel, so the stack does not verify checksums. It computes them, for
// sandboxes whose kernel verifies them.
func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}

// ARPHardwareType implements stack.LinkEndpoint.
func (e *endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// AddHeader implements stack.LinkEndpoint.
func (e *endpoint) AddHeader(*stack.PacketBuffer) {}

// ParseHeader implements stack.LinkEndpoint.
func (e *endpoint) ParseHeader(*stack.PacketBuffer) bool { return true }

// Attach implements stack.LinkEndpoint. Frames are read while a dispatcher is
// attached.
func (e *endpoint) Attach(d stack.NetworkDispatcher) {
	e.mu.Lock()
	was := e.dispatcher
	e.dispatcher = d
	e.mu.Unlock()
	switch {
	case d == nil:
		e.file.SetReadDeadline(time.Unix(1, 0)) // wakes the reader
	case was == nil && !e.closed():
		e.Wait() // waits for the previous reader
		e.file.SetReadDeadline(time.Time{})
		e.readers.Go(e.read)
	}
}

// IsAttached implements stack.LinkEndpoint.
func (e *endpoint) IsAttached() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.dispatcher != nil
}

// Wait implements stack.LinkEndpoint.
func (e *endpoint) Wait() { e.readers.Wait() }

// SetOnCloseAction implements stack.LinkEndpoint.
func (e *endpoint) SetOnCloseAction(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onClose = f
}

// Close implements stack.LinkEndpoint. It may be repeated, even from onClose: a
// stack closes a link again after the link was closed.
func (e *endpoint) Close() {
	e.mu.Lock()
	if e.closed() {
		e.mu.Unlock()
		return
	}
	close(e.done)
	f := e.onClose
	e.mu.Unlock()
	e.file.Close()
	if f != nil {
		f()
	}
}

const frameSize = header.EthernetMinimumSize + mtu

// frames holds buffers for reading; an idle link holds no buffer.
var frames = sync.Pool{New: func() any { return new([frameSize]byte) }}

// readBatch is the number of frames read before the buffer is returned.
const readBatch = 64

// read reads frames until the endpoint is closed or detached.
func (e *endpoint) read() {
	gone := false // the device no longer exists
	for !gone {
		err := e.raw.Read(func(fd uintptr) bool {
			frame := frames.Get().(*[frameSize]byte)
			defer frames.Put(frame)
			for range readBatch {
				n, err := unix.Read(int(fd), frame[:])
				switch err {
				case nil:
					e.deliver(frame[:n])
				case unix.EINTR:
				case unix.EAGAIN:
					return false
				default:
					gone = true
					return true
				}
			}
			return true
		})
		if err != nil || !e.IsAttached() {
			return
		}
	}
}

// deliver passes a frame's packet to the stack if the frame has the host's hardware address.
func (e *endpoint) deliver(frame []byte) {
	if len(frame) <= header.EthernetMinimumSize {
		return
	}
	h := header.Ethernet(frame)
	proto := h.Type()
	if h.DestinationAddress() != gatewayLinkAddr || proto != header.IPv4ProtocolNumber && proto != header.IPv6ProtocolNumber {
		return
	}
	e.mu.RLock()
	d := e.dispatcher
	e.mu.RUnlock()
	if d == nil {
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame[header.EthernetMinimumSize:])})
	d.DeliverNetworkPacket(proto, pkt)
	pkt.DecRef()
}

var (
	sandboxLinkAddr = tcpip.LinkAddress(sandboxMAC)
	gatewayLinkAddr = tcpip.LinkAddress(gatewayMAC)
)

// WritePackets implements stack.LinkEndpoint. Packets that the kernel does not
// accept are lost, as on any link.
func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	sent := 0
	err := e.raw.Write(func(fd uintptr) bool {
		var eth [header.EthernetMinimumSize]byte
		var parts [8][]byte
		for _, pkt := range pkts.AsSlice() {
			header.Ethernet(eth[:]).Encode(&header.EthernetFields{SrcAddr: gatewayLinkAddr, DstAddr: sandboxLinkAddr, Type: pkt.NetworkProtocolNumber})
			frame := append(parts[:0], eth[:])
			frame = append(frame, pkt.AsSlices()...)
			for {
				_, err := unix.Writev(int(fd), frame)
				if err == unix.EINTR {
					continue
				}
				if err != nil {
					return true
				}
				break
			}
			sent++
		}
		return true
	})
	switch {
	case err != nil:
		return sent, &tcpip.ErrClosedForSend{}
	case sent < pkts.Len():
		return sent, &tcpip.ErrNoBufferSpace{}
	}
	return sent, nil
}
