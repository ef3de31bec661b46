import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { sessionServerName } from '../../spec/wire.ts';
import { modelList } from './requests.ts';

/** Folders and limits every nginx of the bench needs; `name` keeps two of them apart. */
function frame(folder: string, name: string, http: string): string {
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map((kind) => `${kind}_temp_path ${join(folder, `${name}-${kind}`)};`)
    .join(' ');
  // As root, workers would otherwise run as a user who may not read the bench's private folder.
  const user = process.getuid?.() === 0 ? 'user root;\n' : '';
  return `${user}worker_processes 1;
daemon off;
pid ${join(folder, `${name}.pid`)};
error_log ${join(folder, `${name}.err`)} warn;
events { worker_connections 4096; }
http {
  access_log off;
  ${temporary}
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  client_max_body_size 32m;
${http}
}
`;
}

export interface StaticUpstream {
  port: number;
  /** The same without TLS, for routers that speak none to their workers. */
  plain_port: number;
  certificate_pem: string;
  private_key_pem: string;
  /** Lines of the endless heartbeat; one a second is sent. */
  heartbeat: string;
  /** The instant answer. */
  answer: string;
}

/** Of an answer's head by nginx, at most. */
const head_bytes = 512;

/**
 * Writes the config of an upstream that answers every request at once with the same bytes, over TLS 1.3 and without.
 */
export function writeUpstreamConfig(folder: string, upstream: StaticUpstream): string {
  const root = join(folder, 'upstream-root');
  mkdirSync(root, { recursive: true });
  const line = `${upstream.heartbeat}\n`;
  writeFileSync(join(root, 'answer.json'), upstream.answer);
  writeFileSync(join(root, 'models.json'), modelList);
  // Served at the pace of one line a second, this lasts for an hour.
  writeFileSync(join(root, 'watch.jsonl'), line.repeat(3600));
  writeFileSync(join(folder, 'upstream.pem'), upstream.certificate_pem);
  writeFileSync(join(folder, 'upstream.key'), upstream.private_key_pem, { mode: 0o600 });
  const file = join(folder, 'upstream.conf');
  // The head counts too: a first heartbeat at this pace would be what a gateway's first answer waits for.
  const pace = `limit_rate ${Buffer.byteLength(line)}; limit_rate_after ${head_bytes + Buffer.byteLength(line)};`;
  const locations = `    location = /v1/models { try_files /models.json =404; }
    location / { error_page 405 =200 /answer.json; try_files /answer.json =404; }`;
  writeFileSync(
    file,
    frame(
      folder,
      'upstream',
      `  types { application/json json; application/jsonl jsonl; }
  root ${root};
  server {
    listen 127.0.0.1:${upstream.port} ssl backlog=4096;
    ssl_certificate ${join(folder, 'upstream.pem')};
    ssl_certificate_key ${join(folder, 'upstream.key')};
    ssl_protocols TLSv1.3;
    location = /hpcserve/v1/watch { ${pace} try_files /watch.jsonl =404; }
${locations}
  }
  server {
    listen 127.0.0.1:${upstream.plain_port} backlog=4096;
${locations}
  }`,
    ),
  );
  return file;
}

/** Writes the config of nginx as the reverse proxy that the gateway is measured against. */
export function writeProxyConfig(
  folder: string,
  name: string,
  port: number,
  upstream: { port: number; session_id: string },
): string {
  const file = join(folder, `${name}.conf`);
  writeFileSync(
    file,
    frame(
      folder,
      name,
      `  upstream sessions { server 127.0.0.1:${upstream.port}; keepalive 512; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:${port} backlog=4096;
    location / {
      proxy_pass https://sessions;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_ssl_protocols TLSv1.3;
      proxy_ssl_server_name on;
      proxy_ssl_name ${sessionServerName(upstream.session_id)};
      proxy_buffering off;
    }
  }`,
    ),
  );
  return file;
}
