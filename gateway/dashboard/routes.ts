import { join } from 'node:path';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { packageRoot } from '../../host/package-root.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type PageFile, readPageFiles } from './page-files.ts';

/**
 * The page may load and ask nothing but this gateway, runs no script but its own file, and makes no HTML of text: what
 * models answer is a stranger's word.
 */
const contentSecurityPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join('; ');

const safety: Readonly<Record<string, string>> = {
  'content-security-policy': contentSecurityPolicy,
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'permissions-policy': 'camera=(), geolocation=(), microphone=()',
};

/**
 * The dashboard: files that hold no data, so that no key is asked for. All that the page shows it asks for with the key
 * that its user pastes, or in a session (`gateway/login/`). Paths are relative, so that it works behind a prefix too.
 */
export function dashboardRoutes(app: FastifyInstance, folder = join(packageRoot, 'dist/web')): void {
  const files = readPageFiles(folder);
  app.get('/', (_request, reply) => reply.redirect('dashboard/'));
  app.get('/dashboard', (_request, reply) => reply.redirect('dashboard/'));
  app.get<{ Params: { '*': string } }>('/dashboard/*', (request, reply) => {
    const name = request.params['*'] || 'index.html';
    const file = files.get(name);
    if (file) return send(file, request, reply);
    throw new HpcserveError('E_REQUEST_PATH', {
      what: `the dashboard has no file ${name.slice(0, 256)}`,
      because:
        files.size === 0 ? `it was not built: ${folder} is empty` : 'it was never there, or is an old one',
      try: files.size === 0 ? '`npm run build`' : 'reload the page',
    });
  });
}

function send(file: PageFile, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  reply.headers(safety).header('etag', file.etag).header('vary', 'accept-encoding');
  reply.header('cache-control', file.immutable ? 'public, max-age=31536000, immutable' : 'no-cache');
  if (request.headers['if-none-match'] === file.etag) return reply.code(304).send();
  reply.type(file.type);
  if (!/\bgzip\b/.test(request.headers['accept-encoding'] ?? '')) return reply.send(file.body);
  return reply.header('content-encoding', 'gzip').send(file.gzip);
}
