/**
 * `Promise.withResolvers` for Node 20, which libp2p calls; a part of the language from Node 22 on. Import it before
 * libp2p.
 */
interface Resolvers<T> {
  promise: Promise<T>;
  resolve: (value: T | PromiseLike<T>) => void;
  reject: (reason?: unknown) => void;
}

const promises = Promise as unknown as { withResolvers?: <T>() => Resolvers<T> };

promises.withResolvers ??= function withResolvers<T>(this: PromiseConstructor): Resolvers<T> {
  let resolve!: Resolvers<T>['resolve'];
  let reject!: Resolvers<T>['reject'];
  const promise = new this<T>((onResolve, onReject) => {
    resolve = onResolve;
    reject = onReject;
  });
  return { promise, resolve, reject };
};
