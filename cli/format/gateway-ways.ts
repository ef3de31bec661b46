import type { GatewayWays } from '../../control/gateway/url.ts';

/** Lines under a URL: what a client needs to trust it, and the socket beside it. */
export function wayLines(url: string, { ca_file, socket }: GatewayWays): string[] {
  return [
    ...(ca_file === undefined
      ? []
      : [
          `CA      ${ca_file}`,
          `        curl --cacert ${ca_file} ${url}/models · for OpenAI clients: SSL_CERT_FILE (Python) or NODE_EXTRA_CA_CERTS (Node) set to it`,
        ]),
    ...(socket === undefined
      ? []
      : [`socket  ${socket}  (curl --unix-socket ${socket} http://localhost/v1/models)`]),
  ];
}
