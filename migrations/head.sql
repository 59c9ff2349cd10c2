-- Written by `python -m tests.migrations.head` out of the revisions; a test holds it against them.
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE sessions (
	id TEXT NOT NULL, 
	parent_id TEXT, 
	goal TEXT NOT NULL, 
	title TEXT, 
	cwd TEXT NOT NULL, 
	model TEXT, 
	status TEXT NOT NULL, 
	end_reason TEXT, 
	options TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	owner_pid INTEGER, 
	owner_started_at DOUBLE, 
	owner_host TEXT, 
	heartbeat_at DOUBLE, 
	lease_expires_at DOUBLE, 
	fence INTEGER NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (id), 
	CONSTRAINT ck_sessions_status CHECK (status IN ('open', 'ended')), 
	CONSTRAINT fk_sessions_parent_id FOREIGN KEY(parent_id) REFERENCES sessions (id) ON DELETE SET NULL
);
CREATE INDEX ix_sessions_parent_id ON sessions (parent_id);
CREATE INDEX ix_sessions_status ON sessions (status, created_at);
CREATE TABLE agents (
	id TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	name TEXT, 
	definition TEXT, 
	model TEXT, 
	cwd TEXT, 
	is_coordinator BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, 
	next_seq INTEGER NOT NULL, 
	CONSTRAINT pk_agents PRIMARY KEY (id), 
	CONSTRAINT fk_agents_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE, 
	CONSTRAINT uq_agents_session_id_name UNIQUE (session_id, name)
);
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	session_id TEXT NOT NULL, 
	task_id TEXT, 
	kind TEXT NOT NULL, 
	data TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	CONSTRAINT fk_events_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE INDEX ix_events_session_id ON events (session_id, id);
CREATE INDEX ix_events_task_id ON events (task_id, id);
CREATE TABLE model_calls (
	response_id TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	task_id TEXT, 
	model TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	input_tokens INTEGER NOT NULL, 
	cache_write_5m_tokens INTEGER NOT NULL, 
	cache_write_1h_tokens INTEGER NOT NULL, 
	cache_read_tokens INTEGER NOT NULL, 
	output_tokens INTEGER NOT NULL, 
	cost_usd DOUBLE, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_model_calls PRIMARY KEY (response_id), 
	CONSTRAINT fk_model_calls_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE INDEX ix_model_calls_at ON model_calls (at);
CREATE INDEX ix_model_calls_session_id ON model_calls (session_id, agent_id);
CREATE TABLE processes (
	pid INTEGER NOT NULL, 
	started_at DOUBLE NOT NULL, 
	host TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	task_id TEXT, 
	marker TEXT NOT NULL, 
	command TEXT, 
	added_at DOUBLE NOT NULL, 
	CONSTRAINT pk_processes PRIMARY KEY (pid, started_at, host), 
	CONSTRAINT fk_processes_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE INDEX ix_processes_session_id ON processes (session_id, task_id);
CREATE TABLE deliveries (
	position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	task_id TEXT, 
	sender TEXT, 
	body TEXT, 
	status TEXT NOT NULL, 
	why TEXT, 
	consumed_seq INTEGER, 
	created_at DOUBLE NOT NULL, 
	settled_at DOUBLE, 
	CONSTRAINT ck_deliveries_kind CHECK (kind IN ('notification', 'message')), 
	CONSTRAINT ck_deliveries_status CHECK (status IN ('waiting', 'consumed', 'undelivered')), 
	CONSTRAINT fk_deliveries_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE, 
	CONSTRAINT fk_deliveries_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE, 
	CONSTRAINT uq_deliveries_id UNIQUE (id)
);
CREATE INDEX ix_deliveries_agent_id ON deliveries (agent_id, status, position);
CREATE INDEX ix_deliveries_session_id ON deliveries (session_id, status);
CREATE TABLE messages (
	agent_id TEXT NOT NULL, 
	seq INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	task_id TEXT, 
	role TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	meta BOOLEAN NOT NULL, 
	content TEXT NOT NULL, 
	extra TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_messages PRIMARY KEY (agent_id, seq), 
	CONSTRAINT fk_messages_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE, 
	CONSTRAINT uq_messages_agent_id_id UNIQUE (agent_id, id)
);
CREATE TABLE steps (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	agent_id TEXT NOT NULL, 
	message_id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	part TEXT NOT NULL, 
	content TEXT NOT NULL, 
	model TEXT, 
	at DOUBLE NOT NULL, 
	CONSTRAINT ck_steps_kind CHECK (kind IN ('answer', 'result')), 
	CONSTRAINT fk_steps_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE, 
	CONSTRAINT uq_steps_agent_id_message_id_kind_part UNIQUE (agent_id, message_id, kind, part)
);
CREATE TABLE tasks (
	id TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	parent_id TEXT, 
	continues TEXT, 
	type TEXT NOT NULL, 
	status TEXT NOT NULL, 
	description TEXT NOT NULL, 
	name TEXT, 
	definition TEXT, 
	model TEXT, 
	prompt TEXT NOT NULL, 
	cwd TEXT, 
	worktree TEXT, 
	branch TEXT, 
	isolation TEXT, 
	background BOOLEAN NOT NULL, 
	result_schema TEXT, 
	allowed_tools TEXT, 
	created_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	ended_at DOUBLE, 
	result TEXT, 
	error TEXT, 
	error_class TEXT, 
	retryable BOOLEAN, 
	end_reason TEXT, 
	output_file TEXT, 
	exit_code INTEGER, 
	notified BOOLEAN NOT NULL, 
	attempt INTEGER NOT NULL, 
	fence INTEGER, 
	owner_pid INTEGER, 
	owner_started_at DOUBLE, 
	owner_host TEXT, 
	stop_requested_at DOUBLE, 
	stop_requested_by TEXT, 
	stop_wrap_up DOUBLE, 
	tool_uses INTEGER NOT NULL, 
	input_tokens INTEGER NOT NULL, 
	output_tokens INTEGER NOT NULL, 
	cache_read_tokens INTEGER NOT NULL, 
	cache_write_tokens INTEGER NOT NULL, 
	cost_usd DOUBLE, 
	activities TEXT NOT NULL, 
	last_activity_at DOUBLE, denied TEXT, tags TEXT, 
	CONSTRAINT pk_tasks PRIMARY KEY (id), 
	CONSTRAINT ck_tasks_ended_at CHECK ((ended_at IS NULL) = (status IN ('pending', 'running'))), 
	CONSTRAINT ck_tasks_error_class CHECK (status <> 'failed' OR error_class IS NOT NULL), 
	CONSTRAINT ck_tasks_status CHECK (status IN ('pending', 'running', 'completed', 'failed', 'killed')), 
	CONSTRAINT fk_tasks_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE, 
	CONSTRAINT fk_tasks_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE INDEX ix_tasks_agent_id ON tasks (agent_id, created_at);
CREATE INDEX ix_tasks_session_id ON tasks (session_id, status, created_at);
CREATE VIEW v_sessions AS 
            SELECT s.id, s.parent_id, s.title, s.goal, s.cwd, s.model, s.status, s.end_reason,
                   strftime('%Y-%m-%dT%H:%M:%fZ', s.created_at, 'unixepoch') AS created_at, strftime('%Y-%m-%dT%H:%M:%fZ', s.updated_at, 'unixepoch') AS updated_at,
                   strftime('%Y-%m-%dT%H:%M:%fZ', s.ended_at, 'unixepoch') AS ended_at, s.owner_pid, s.owner_host,
                   (SELECT count(*) FROM tasks t WHERE t.session_id = s.id) AS tasks,
                   (SELECT count(*) FROM tasks t WHERE t.session_id = s.id AND t.status IN ('pending', 'running'))
                       AS live_tasks,
                   (SELECT CASE WHEN count(*) = count(c.cost_usd) THEN coalesce(sum(c.cost_usd), 0) END
                    FROM model_calls c WHERE c.session_id = s.id) AS cost_usd
            FROM sessions s;
CREATE VIEW v_tasks AS 
            SELECT id, agent_id, session_id, parent_id, continues, type, status, description, name,
                   definition AS agent, model, strftime('%Y-%m-%dT%H:%M:%fZ', created_at, 'unixepoch') AS created_at, strftime('%Y-%m-%dT%H:%M:%fZ', started_at, 'unixepoch') AS started_at,
                   strftime('%Y-%m-%dT%H:%M:%fZ', ended_at, 'unixepoch') AS ended_at, CAST((ended_at - started_at) * 1000 AS INTEGER) AS duration_ms,
                   tool_uses, input_tokens, output_tokens, input_tokens + output_tokens AS total_tokens, cost_usd,
                   strftime('%Y-%m-%dT%H:%M:%fZ', last_activity_at, 'unixepoch') AS last_activity_at, attempt, end_reason, error, error_class, retryable,
                   worktree, branch, output_file, prompt, result
            FROM tasks;
CREATE VIEW v_cost AS 
            SELECT strftime('%Y-%m-%dT%H:%M:%fZ', at, 'unixepoch') AS at, substr(strftime('%Y-%m-%dT%H:%M:%fZ', at, 'unixepoch'), 1, 10) AS day, session_id, agent_id, task_id, model, purpose,
                   input_tokens, cache_write_5m_tokens, cache_write_1h_tokens, cache_read_tokens, output_tokens,
                   cost_usd, response_id
            FROM model_calls;
CREATE VIEW v_events AS SELECT id, strftime('%Y-%m-%dT%H:%M:%fZ', at, 'unixepoch') AS at, session_id, task_id, kind, data FROM events;
CREATE TABLE approvals (
	id TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	task_id TEXT, 
	fence INTEGER NOT NULL, 
	tool_use_id TEXT NOT NULL, 
	tool TEXT NOT NULL, 
	input TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	shown TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	suggested_rule TEXT, 
	asked_at DOUBLE NOT NULL, 
	status TEXT NOT NULL, 
	answered_at DOUBLE, 
	answered_by TEXT, 
	note TEXT, 
	rule TEXT, 
	CONSTRAINT pk_approvals PRIMARY KEY (id), 
	CONSTRAINT ck_approvals_status CHECK (status IN ('waiting', 'approved', 'denied', 'taken', 'withdrawn')), 
	CONSTRAINT ck_approvals_answered_at CHECK ((answered_at IS NULL) = (status IN ('waiting', 'withdrawn'))), 
	CONSTRAINT fk_approvals_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE, 
	CONSTRAINT fk_approvals_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE INDEX ix_approvals_session_id ON approvals (session_id, agent_id);
CREATE INDEX ix_approvals_status ON approvals (status, asked_at);
CREATE TABLE nodes (
	name TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	host TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	version TEXT NOT NULL, 
	slots INTEGER NOT NULL, 
	tags TEXT NOT NULL, 
	running TEXT NOT NULL, 
	draining BOOLEAN NOT NULL, 
	load DOUBLE, 
	memory INTEGER, 
	started_at DOUBLE NOT NULL, 
	heartbeat_at DOUBLE NOT NULL, 
	CONSTRAINT pk_nodes PRIMARY KEY (name)
);
CREATE INDEX ix_tasks_status ON tasks (status, created_at, id);
CREATE TABLE budget_shares (
	session_id TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	usd DOUBLE NOT NULL, 
	tokens INTEGER NOT NULL, 
	busy BOOLEAN NOT NULL, 
	CONSTRAINT pk_budget_shares PRIMARY KEY (session_id, holder), 
	CONSTRAINT fk_budget_shares_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE account_limits (
	account TEXT NOT NULL, 
	blocked_until DOUBLE NOT NULL, 
	minute INTEGER NOT NULL, 
	requests INTEGER NOT NULL, 
	tokens INTEGER NOT NULL, 
	CONSTRAINT pk_account_limits PRIMARY KEY (account)
);
CREATE TABLE shared_files (
	session_id TEXT NOT NULL, 
	path TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	digest TEXT NOT NULL, 
	content TEXT, 
	CONSTRAINT pk_shared_files PRIMARY KEY (session_id, path), 
	CONSTRAINT fk_shared_files_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE commit_marks (
	connection TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_commit_marks PRIMARY KEY (connection)
);
INSERT INTO alembic_version VALUES ('0008');
