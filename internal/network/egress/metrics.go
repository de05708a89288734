package egress

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/engi"
)

// metrics holds the metrics of all sandboxes of a gateway.
type metrics struct {
	open      prometheus.Gauge
	sandboxes prometheus.Gauge
	decisions *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	dial      prometheus.Histogram
	lookup    prometheus.Histogram
	dropped   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, lost func() float64) (*metrics, error) {
	m := &metrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: "engi_network_connections_open",
			Help: "Open connections and datagram exchanges of sandboxes."}),
		sandboxes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "engi_network_sandboxes_open",
			Help: "Sandboxes with a network policy other than none in force."}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "engi_network_decisions_total",
			Help: "Decisions of the network boundary."}, []string{"kind", "protocol", "allowed"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "engi_network_bytes_total",
			Help: "Bytes sent (up) and received (down) by sandboxes."}, []string{"direction"}),
		dial: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "engi_network_dial_seconds",
			Help: "Time to connect to a destination.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9)}),
		lookup: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "engi_network_lookup_seconds",
			Help: "Time to answer an allowed DNS query.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9)}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "engi_network_packets_dropped_total",
			Help: "Packets of sandboxes that were dropped unread: fragments, forged sources, unknown protocols."}),
	}
	if reg == nil {
		return m, nil
	}
	unwritten := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "engi_network_events_lost_total",
		Help: "Network events that were not stored."}, lost)
	for _, c := range []prometheus.Collector{m.open, m.sandboxes, m.decisions, m.bytes, m.dial, m.lookup, m.dropped, unwritten} {
		if err := reg.Register(c); err != nil {
			return nil, engi.Errorf(engi.Internal, "register network metrics: %v", err)
		}
	}
	return m, nil
}

func (m *metrics) decided(e engi.NetworkRecord) {
	allowed := "no"
	if e.Allowed {
		allowed = "yes"
	}
	m.decisions.WithLabelValues(string(e.Kind), e.Protocol, allowed).Inc()
}
