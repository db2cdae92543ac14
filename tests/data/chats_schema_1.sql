-- A chat database as the first schema left it; never edit, it stands for files on users' disks.
CREATE TABLE chats (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  title TEXT NOT NULL,
  pair TEXT NOT NULL,
  system TEXT NOT NULL DEFAULT '',
  settings TEXT NOT NULL DEFAULT '{}',
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL
);
CREATE TABLE turns (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  role TEXT NOT NULL,
  content TEXT NOT NULL,
  reasoning TEXT NOT NULL DEFAULT '',
  ending TEXT NOT NULL DEFAULT 'stop',
  note TEXT NOT NULL DEFAULT '',
  created_at REAL NOT NULL,
  UNIQUE (chat_id, position)
);
CREATE INDEX chats_by_update ON chats(updated_at);
INSERT INTO chats VALUES (1, 'Haiku', 'demo', 'Be brief', '{"max_tokens": 64}', 1000.0, 1001.0);
INSERT INTO turns(chat_id, position, role, content, created_at) VALUES (1, 0, 'user', 'Write a haiku', 1000.0);
INSERT INTO turns(chat_id, position, role, content, ending, created_at)
  VALUES (1, 1, 'assistant', 'An old silent pond', 'cancelled', 1001.0);
PRAGMA user_version = 1;
