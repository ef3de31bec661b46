type X509Library = typeof import('@peculiar/x509');

/**
 * What makes certificates. It takes a tenth of a second to load, and most commands that know the mesh make none.
 */
export async function loadX509(): Promise<X509Library> {
  // It finds its algorithm providers by a polyfill of Reflect.
  await import('reflect-metadata');
  return import('@peculiar/x509');
}
