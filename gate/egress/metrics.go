package egress

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi"
)

// metrics are what operators see of all sandboxes together.
type metrics struct {
	open      prometheus.Gauge
	rooms     prometheus.Gauge
	decisions *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	dial      prometheus.Histogram
	lookup    prometheus.Histogram
	dropped   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, lost func() float64) (*metrics, error) {
	m := &metrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: "engi_network_connections_open",
			Help: "Connections and exchanges of datagrams of sandboxes that are open."}),
		rooms: prometheus.NewGauge(prometheus.GaugeOpts{Name: "engi_network_sandboxes_open",
			Help: "Sandboxes that have a policy other than none in force."}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "engi_network_decisions_total",
			Help: "Decisions of the wall."}, []string{"kind", "protocol", "allowed"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "engi_network_bytes_total",
			Help: "Bytes out of (up) and into (down) sandboxes."}, []string{"direction"}),
		dial: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "engi_network_dial_seconds",
			Help: "Time until a connection outside was made.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9)}),
		lookup: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "engi_network_lookup_seconds",
			Help: "Time until an allowed DNS question was answered.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9)}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "engi_network_packets_dropped_total",
			Help: "Packets of sandboxes that no stack was given: fragments, forged senders, unknown protocols."}),
	}
	if reg == nil {
		return m, nil
	}
	unwritten := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "engi_network_events_lost_total",
		Help: "Events of the wall that were not written."}, lost)
	for _, c := range []prometheus.Collector{m.open, m.rooms, m.decisions, m.bytes, m.dial, m.lookup, m.dropped, unwritten} {
		if err := reg.Register(c); err != nil {
			return nil, engi.Errorf(engi.Internal, "metrics of the wall: %v", err)
		}
	}
	return m, nil
}

func (m *metrics) decided(e engi.NetworkEvent) {
	allowed := "no"
	if e.Allowed {
		allowed = "yes"
	}
	m.decisions.WithLabelValues(string(e.Kind), e.Protocol, allowed).Inc()
}
