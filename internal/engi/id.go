package engi

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"strings"
	"time"
)

// IDs are a four-letter prefix with its underscore and 26 characters of
// base32: unguessable, never reused, and all of one length (runsc resolves ID
// prefixes, so no ID may be the beginning of another).
type (
	// A SandboxID names one sandbox forever.
	SandboxID string
	// An ExecutionID names one run of code forever.
	ExecutionID string
	// A SnapshotID names one snapshot forever.
	SnapshotID string
	// A VolumeID names one volume forever.
	VolumeID string
	// A SecretID names one secret forever.
	SecretID string
	// A SessionID names one session forever.
	SessionID string
	// A RunID names one run of an agent forever.
	RunID string
	// A ConversationID names one conversation forever.
	ConversationID string
	// A DocumentID names one document of the docs forever.
	DocumentID string
	// An EventID names one event forever.
	EventID string
	// A FunctionRunID names one run of a durable function forever.
	FunctionRunID string
	// An OperationID names one operation forever.
	OperationID string
	// A WebhookID names one webhook forever.
	WebhookID string
	// An ApprovalID names one approval forever.
	ApprovalID string
	// A TerminalID names one terminal forever.
	TerminalID string
	// A TerminalLinkID names one link to a terminal forever.
	TerminalLinkID string
	// An SSHKeyID names one SSH key forever.
	SSHKeyID string
	// An AppID names one app forever.
	AppID string
	// A WorkspaceID names one workspace forever.
	WorkspaceID string
	// A WorkflowID names one workflow forever.
	WorkflowID string
	// A RequestID names one request to an API, in logs and errors.
	RequestID string
)

const (
	idAlphabet = "abcdefghijklmnopqrstuvwxyz234567"
	idLength   = 26

	sandboxPrefix   = "sbx_"
	executionPrefix = "exe_"
	snapshotPrefix  = "snp_"
	volumePrefix    = "vol_"
	secretPrefix    = "sec_"
	sessionPrefix   = "ses_"
	runPrefix       = "run_"
	conversePrefix  = "cnv_"
	documentPrefix  = "doc_"
	eventPrefix     = "evt_"
	functionPrefix  = "fnr_"
	operationPrefix = "opn_"
	webhookPrefix   = "whk_"
	approvalPrefix  = "apv_"
	terminalPrefix  = "trm_"
	termLinkPrefix  = "tlk_"
	sshKeyPrefix    = "ssh_"
	appPrefix       = "app_"
	workspacePrefix = "wsp_"
	workflowPrefix  = "wfl_"
	requestPrefix   = "req_"
)

func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()) }

// newOrderedID returns an ID that begins with the current time, so that an
// index on it grows at one end. The rest of the ID is random.
func newOrderedID(prefix string) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(time.Now().UnixMilli())<<16)
	rand.Read(b[6:])
	return prefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// anyID is the constraint of all ID types.
type anyID interface {
	~string
	Check() error
}

// parse converts text to an ID. It reports Invalid.
func parse[ID anyID](text string) (ID, error) {
	if err := ID(text).Check(); err != nil {
		return "", err
	}
	return ID(text), nil
}

func checkID(prefix, noun, s string) error {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok || len(rest) != idLength || strings.Trim(rest, idAlphabet) != "" {
		return Errorf(Invalid, "%.40q is not %s ID", s, noun).
			WithRemedy("it is %q and %d lower-case letters and digits", prefix, idLength)
	}
	return nil
}

// NewSandboxID returns a new, unguessable ID.
func NewSandboxID() SandboxID { return SandboxID(newID(sandboxPrefix)) }

// ParseSandboxID converts text from outside to an ID. It reports Invalid.
func ParseSandboxID(s string) (SandboxID, error) { return parse[SandboxID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id SandboxID) Check() error { return checkID(sandboxPrefix, "a sandbox", string(id)) }

// NewExecutionID returns a new, unguessable ID.
func NewExecutionID() ExecutionID { return ExecutionID(newID(executionPrefix)) }

// ParseExecutionID converts text from outside to an ID. It reports Invalid.
func ParseExecutionID(s string) (ExecutionID, error) { return parse[ExecutionID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id ExecutionID) Check() error { return checkID(executionPrefix, "an execution", string(id)) }

// NewAppID returns a new, unguessable ID.
func NewAppID() AppID { return AppID(newID(appPrefix)) }

// ParseAppID converts text from outside to an ID. It reports Invalid.
func ParseAppID(s string) (AppID, error) { return parse[AppID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id AppID) Check() error { return checkID(appPrefix, "an app", string(id)) }

// NewWorkspaceID returns a new, unguessable ID.
func NewWorkspaceID() WorkspaceID { return WorkspaceID(newID(workspacePrefix)) }

// ParseWorkspaceID converts text from outside to an ID. It reports Invalid.
func ParseWorkspaceID(s string) (WorkspaceID, error) { return parse[WorkspaceID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id WorkspaceID) Check() error { return checkID(workspacePrefix, "a workspace", string(id)) }

// NewWorkflowID returns a new, unguessable ID.
func NewWorkflowID() WorkflowID { return WorkflowID(newID(workflowPrefix)) }

// Check reports Invalid unless the ID is well-formed.
func (id WorkflowID) Check() error { return checkID(workflowPrefix, "a workflow", string(id)) }

// Label returns the ID without its prefix, for use in a host name.
func (id WorkspaceID) Label() string { return string(id)[min(len(id), len(workspacePrefix)):] }

// WorkspaceOfLabel is the inverse of [WorkspaceID.Label]. It reports Invalid.
func WorkspaceOfLabel(label string) (WorkspaceID, error) {
	return ParseWorkspaceID(workspacePrefix + label)
}

// NewTerminalID returns a new, unguessable ID.
func NewTerminalID() TerminalID { return TerminalID(newID(terminalPrefix)) }

// Check reports Invalid unless the ID is well-formed.
func (id TerminalID) Check() error { return checkID(terminalPrefix, "a terminal", string(id)) }

// NewTerminalLinkID returns a new, unguessable ID.
func NewTerminalLinkID() TerminalLinkID { return TerminalLinkID(newID(termLinkPrefix)) }

// Check reports Invalid unless the ID is well-formed.
func (id TerminalLinkID) Check() error {
	return checkID(termLinkPrefix, "a link to a terminal", string(id))
}

// NewRequestID returns a new, unguessable ID.
func NewRequestID() RequestID { return RequestID(newID(requestPrefix)) }

// NewSnapshotID returns a new, unguessable ID.
func NewSnapshotID() SnapshotID { return SnapshotID(newID(snapshotPrefix)) }

// ParseSnapshotID converts text from outside to an ID. It reports Invalid.
func ParseSnapshotID(s string) (SnapshotID, error) { return parse[SnapshotID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id SnapshotID) Check() error { return checkID(snapshotPrefix, "a snapshot", string(id)) }

// NewVolumeID returns a new, unguessable ID.
func NewVolumeID() VolumeID { return VolumeID(newID(volumePrefix)) }

// ParseVolumeID converts text from outside to an ID. It reports Invalid.
func ParseVolumeID(s string) (VolumeID, error) { return parse[VolumeID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id VolumeID) Check() error { return checkID(volumePrefix, "a volume", string(id)) }

// NewSecretID returns a new, unguessable ID.
func NewSecretID() SecretID { return SecretID(newID(secretPrefix)) }

// ParseSecretID converts text from outside to an ID. It reports Invalid.
func ParseSecretID(s string) (SecretID, error) { return parse[SecretID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id SecretID) Check() error { return checkID(secretPrefix, "a secret", string(id)) }

// Label returns the ID without its prefix, for use in a host name.
func (id SandboxID) Label() string { return string(id)[min(len(id), len(sandboxPrefix)):] }

// SandboxOfLabel is the inverse of [SandboxID.Label]. It reports Invalid.
func SandboxOfLabel(label string) (SandboxID, error) { return ParseSandboxID(sandboxPrefix + label) }

// Label returns the ID without its prefix, for use in a host name.
func (id AppID) Label() string { return string(id)[min(len(id), len(appPrefix)):] }

// AppOfLabel is the inverse of [AppID.Label]. It reports Invalid.
func AppOfLabel(label string) (AppID, error) { return ParseAppID(appPrefix + label) }

// NewSessionID returns a new, unguessable ID.
func NewSessionID() SessionID { return SessionID(newID(sessionPrefix)) }

// ParseSessionID converts text from outside to an ID. It reports Invalid.
func ParseSessionID(s string) (SessionID, error) { return parse[SessionID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id SessionID) Check() error { return checkID(sessionPrefix, "a session", string(id)) }

// NewRunID returns a new, unguessable ID.
func NewRunID() RunID { return RunID(newID(runPrefix)) }

// ParseRunID converts text from outside to an ID. It reports Invalid.
func ParseRunID(s string) (RunID, error) { return parse[RunID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id RunID) Check() error { return checkID(runPrefix, "a run", string(id)) }

// NewConversationID returns a new, unguessable ID.
func NewConversationID() ConversationID { return ConversationID(newID(conversePrefix)) }

// ParseConversationID converts text from outside to an ID. It reports Invalid.
func ParseConversationID(s string) (ConversationID, error) { return parse[ConversationID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id ConversationID) Check() error { return checkID(conversePrefix, "a conversation", string(id)) }

// NewDocumentID returns a new, unguessable ID.
func NewDocumentID() DocumentID { return DocumentID(newID(documentPrefix)) }

// Check reports Invalid unless the ID is well-formed.
func (id DocumentID) Check() error { return checkID(documentPrefix, "a document", string(id)) }

// NewWebhookID returns a new, unguessable ID.
func NewWebhookID() WebhookID { return WebhookID(newID(webhookPrefix)) }

// ParseWebhookID converts text from outside to an ID. It reports Invalid.
func ParseWebhookID(s string) (WebhookID, error) { return parse[WebhookID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id WebhookID) Check() error { return checkID(webhookPrefix, "a webhook", string(id)) }

// NewEventID returns a new, unguessable ID that begins with the current time.
func NewEventID() EventID { return EventID(newOrderedID(eventPrefix)) }

// ParseEventID converts text from outside to an ID. It reports Invalid.
func ParseEventID(s string) (EventID, error) { return parse[EventID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id EventID) Check() error { return checkID(eventPrefix, "an event", string(id)) }

// NewFunctionRunID returns a new, unguessable ID.
func NewFunctionRunID() FunctionRunID { return FunctionRunID(newID(functionPrefix)) }

// ParseFunctionRunID converts text from outside to an ID. It reports Invalid.
func ParseFunctionRunID(s string) (FunctionRunID, error) { return parse[FunctionRunID](s) }

// Check reports Invalid unless the ID is well-formed.
func (id FunctionRunID) Check() error { return checkID(functionPrefix, "a function run", string(id)) }

// NewOperationID returns a new, unguessable ID.
func NewOperationID() OperationID { return OperationID(newID(operationPrefix)) }

// Check reports Invalid unless the ID is well-formed.
func (id OperationID) Check() error { return checkID(operationPrefix, "an operation", string(id)) }

// NewApprovalID returns a new, unguessable ID.
func NewApprovalID() ApprovalID { return ApprovalID(newID(approvalPrefix)) }

// Check reports Invalid unless the ID is well-formed.
func (id ApprovalID) Check() error { return checkID(approvalPrefix, "an approval", string(id)) }

// NewSSHKeyID returns a new, unguessable ID.
func NewSSHKeyID() SSHKeyID { return SSHKeyID(newID(sshKeyPrefix)) }

// Check reports Invalid unless the ID is well-formed.
func (id SSHKeyID) Check() error { return checkID(sshKeyPrefix, "an SSH key", string(id)) }
