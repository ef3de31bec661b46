/** Of Linux; named as Node names them. */
export const targetArchitectures = ['x64', 'arm64'] as const;
export type TargetArchitecture = (typeof targetArchitectures)[number];
