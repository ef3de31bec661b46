/** Lines of engines' logs without what their loggers put before them. */

export interface LogLine {
  /** What its process calls itself (`EngineCore pid=123`), to tell interleaved tracebacks apart; empty: it does not. */
  source: string;
  /** As the logger says; undefined where no logger wrote the line. */
  level: 'debug' | 'info' | 'warning' | 'error' | undefined;
  text: string;
}

/** Terminal colours and other control sequences of ECMA-48. */
const escapes = /\u001b\[[0-9;?]*[A-Za-z]/g;

const levels: Readonly<Record<string, LogLine['level']>> = {
  DEBUG: 'debug',
  TRACE: 'debug',
  INFO: 'info',
  WARNING: 'warning',
  WARN: 'warning',
  ERROR: 'error',
  CRITICAL: 'error',
  FATAL: 'error',
  D: 'debug',
  I: 'info',
  W: 'warning',
  E: 'error',
};

/**
 * What stands before the words of a line, each with the program that writes it so. All of them may come together, and
 * several times.
 */
const prefixes: readonly RegExp[] = [
  // vLLM: `(EngineCore_0 pid=123) `, Ray: `(RayWorkerVllm pid=123, ip=10.0.0.1) `.
  /^\((?<source>[\w:.-]+(?: rank=\d+)? pid=\d+[^)]*)\) ?/,
  // torchrun and PyTorch: `[rank0]: `.
  /^\[(?<source>rank\d+)\]: ?/,
  // vLLM: `ERROR 01-02 12:36:59 [core.py:712] `, `INFO 05-05 12:36:59 core.py:712] `.
  /^(?<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\]|[\w./]+:\d+\]) ?/,
  // SGLang: `[2025-03-09 00:57:15 TP4] `, with `[2025-03-09 00:57:15] WARNING: ` of some of its libraries; without the
  // date until 0.3.
  /^\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d+)?(?<source>(?: [A-Z]+\d+)*)\] ?/,
  // uvicorn: `INFO:     `.
  /^(?<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): +/,
  // Rust's tracing (TGI): `2025-03-09T00:57:15.123456Z ERROR `.
  /^\d{4}-\d\d-\d\dT[\d:.]+Z\s+(?<level>TRACE|DEBUG|INFO|WARN|ERROR) ?/,
  // Python's logging as TensorRT-LLM and LMDeploy set it: `[01/02/2025-12:36:59] [TRT-LLM] [E] `, and
  // `2025-03-09 00:57:15,123 - lmdeploy - ERROR - `.
  /^\[\d\d\/\d\d\/\d{4}-[\d:]+\] \[TRT-LLM\] \[(?<level>[DIWE])\] ?/,
  /^\d{4}-\d\d-\d\d [\d:]+,\d+ - [\w.]+ - (?<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) - (?:[\w.]+:\d+ - )?/,
  // Ollama: `time=2025-03-09T00:57:15.123Z level=ERROR source=sched.go:474 msg=`.
  /^time=\S+ level=(?<level>DEBUG|INFO|WARN|ERROR) source=\S+ msg=/,
  // llama.cpp with --log-prefix: `53.26.801.941 E `.
  /^(?:\d+\.){3}\d+ (?<level>[DIWE]) /,
];

export function readLogLine(line: string): LogLine {
  let text = line.replace(escapes, '').trimEnd();
  let source = '';
  let level: LogLine['level'];
  for (let found = true; found; ) {
    found = false;
    for (const prefix of prefixes) {
      const match = prefix.exec(text);
      if (!match) continue;
      text = text.slice(match[0].length);
      source = [source, match.groups?.source?.trim()].filter(Boolean).join(' ');
      level = levels[match.groups?.level ?? ''] ?? level;
      found = true;
    }
  }
  return { source, level, text };
}

/**
 * One line a request, most of them the agent's own questions for health and metrics: of uvicorn (`INFO: 127.0.0.1:4 -
 * "GET /health HTTP/1.1" 200 OK`), and llama-server.
 */
const access = [
  /^[^\s"]*\s*-\s*"(GET|HEAD|POST|PUT|DELETE|OPTIONS) \S+ HTTP\/\d(\.\d)?" \d{3}\b/,
  /^srv\s+log_server_r: (done )?request: (GET|HEAD|POST|OPTIONS) \S+ \S* ?\d{3}$/,
];

/** Whether it is of the log of requests, which says nothing about how the engine is. */
export function isAccessLine(line: string): boolean {
  if (!line.includes('HTTP/') && !line.includes('log_server_r')) return false;
  const { text } = readLogLine(line);
  return access.some((pattern) => pattern.test(text));
}
